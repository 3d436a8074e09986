"""The gRPC services of the agent: one module each, requests in, calls to the jobs, replies and streams out."""
