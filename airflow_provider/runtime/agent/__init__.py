"""The agent: what runs on a cluster's head. Imports the standard library, grpc, protobuf and the wire, nothing else."""
