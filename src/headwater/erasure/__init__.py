"""Erasure of a subject: what is stored of it, dropped and erased, with a receipt; and the proof.

subject     KIND:ID
searching   records of the subject in topics: encrypted, or in plain text
event_store the event store: plain events, snapshots
derived     stores that pipelines derive from these topics
reach       what cannot be reached, by name: consumer groups, backups
other_brokers  what can be done where a broker cannot erase records
erasing     the steps of an erasure, each of which can be repeated
texts       texts of a person in files and in rows of derived stores
verifying   whether something readable is left
"""
