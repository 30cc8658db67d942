"""States of groups, captures, pipelines and stores for the pages, and the jobs they start."""
