"""Who is who in a deployment: a private authority, certificates of a day, join tokens and a deny list.

names          what a node is called, and how a certificate says it
keys           a private key and the request to have it signed
certificates   what a certificate says, and why one is refused
authority      the private authority that signs
files          the folder in which a node keeps its key and its certificate
renewal        a new certificate before the old one ends
tokens         single-use permissions to join
deny           nodes that are locked out
office         all that a coordinator keeps: authority, tokens, deny list and its own identity
exchange       one JSON line there, one back
join           how a new edge gets its certificate from the coordinator's front desk
tls            credentials for gRPC, and whose call it is

A private key never leaves the machine on which it was made.
"""
