"""Commands of the flow: captures, pipelines, views, stored queries, events, and their proofs."""
