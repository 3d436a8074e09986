"""What runs one job, apart from the agent and longer than it. Imports the least: it stands before a job's first line."""
