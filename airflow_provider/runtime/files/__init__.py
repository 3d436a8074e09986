"""How local files reach a cluster: packed once into an archive, kept in a blob store, unpacked on the nodes."""
