"""The flow from sources to stores as a graph, and its layout on the page."""
