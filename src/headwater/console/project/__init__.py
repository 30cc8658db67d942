"""What the pages show of groups, captures, pipelines and stores, and the jobs that they start."""
