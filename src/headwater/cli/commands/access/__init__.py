"""Commands of who may do what: users, ACLs, tokens; and of the keys and data of subjects."""
