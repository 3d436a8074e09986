"""Reading the logs of jobs: as bytes from an offset, as last lines, as text."""
