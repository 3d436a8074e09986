"""Starting, finding and ending processes: children, trees, control groups, and all that a job or a cluster started."""
