"""The queue of a cluster: what a job is, where it is stored, when it starts, and who watches its driver."""
