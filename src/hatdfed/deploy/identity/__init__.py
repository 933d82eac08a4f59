"""Who is who in a deployment: a private authority, certificates of a day, join tokens and a deny list.

names            what a node is called, and how a certificate names it
certificates     keys, signing requests and certificates, and why one is refused
authority        the private authority that signs
private_files    files that survive a crash and that only their owner may read
files            the folder in which a node keeps its key and its certificate
tokens           single-use permissions to join
deny             nodes that are locked out
identity_store   all that a coordinator keeps: authority, tokens, deny list and its own identity
join             how a new edge gets its certificate, and how it is renewed
join_server      the coordinator's port for new edges
tls              credentials for gRPC, and who calls

A private key never leaves the machine on which it was made.
"""
