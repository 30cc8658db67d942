"""Values that are Protobuf messages.

decoder     one column for each field
registered  messages and columns by a registry
"""
