"""Subjects: whose personal data a field is, its encryption, and the keys that can be dropped.

settings      [subjects] and [subject.NAME]: which fields of which topics are personal
sealing       one value encrypted and decrypted with the data key of its subject
root_key      the key that wraps all others: in a file, or behind a command (KMS)
key_database  the tables of the key store, and its creation
key_store     data keys, wrapped; erased subjects; erasures under way
keyring       the keys that a process uses: created in groups, cached, and dropped with the store
personal      personal fields of JSON values: encrypted, decrypted, found in plain text
access        from the settings to the keyring of a process
receipts      signed receipts of erasures

No Spark, no broker: captures, the gateway, the event store and pipelines use it.
"""
