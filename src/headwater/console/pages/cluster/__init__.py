"""/cluster: brokers, processes, logs, transactions, users, ACLs and quotas."""
