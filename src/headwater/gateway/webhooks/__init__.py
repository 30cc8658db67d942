"""Webhooks: records of topics sent to addresses by POST, and webhooks of others taken into topics.

definitions     what is registered, in a compacted topic
├── targets         which addresses may be sent to, also after names were resolved
administration  add, pause, remove, redeliver, and how far each one is
service         a thread that delivers those webhooks that are this gateway's
├── sending         one webhook: its position, order by key, retries, dead letters
│   └── posting         one request, HTTP/1.1 over a connection that was checked
└── states          what became of it, for people, in a compacted topic
routes          the API: /receivers
receiving       POST /webhooks/NAME
└── verification    signatures of Standard Webhooks, GitHub and Stripe
"""
