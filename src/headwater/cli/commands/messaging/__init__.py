"""Commands of messages beside the log: RPC, webhooks, alerts, multicast."""
