"""What web servers share, the console and the gateway: sockets, deadlines, logins, safe names.

serving       binds an address, refuses one that is not safe, serves until it is asked to stop
connections   limits in number and in waiting time, for each connection
websockets    connections that were upgraded
login_access  a login's way to the broker
byte_budget   bytes that requests may hold in memory together
hosts         names by which browsers may ask, and pages of other sites
logins        logins of users at the broker
attempts      who guesses passwords has to wait
live          server-sent events, and the limit of open streams
"""
