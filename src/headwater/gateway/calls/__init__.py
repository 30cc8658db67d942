"""Calls of services over HTTP: POST /rpc/NAME (`routes`)."""
