"""Alerts: conditions over measures and derived tables, watched by the gateway.

service         watches all alerts every few seconds, in one gateway of a cluster
├── measures        what a condition is about, as a number
│   └── record_counts   records of a topic within a time
├── rules           from values to states: pending, firing, recovered; what is notified
├── notices         to a webhook, by mail, into the log
└── store           states, silences and history in topics
"""
