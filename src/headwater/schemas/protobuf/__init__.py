"""Protobuf: the text of .proto files to and from descriptors, compatibility, and messages."""
