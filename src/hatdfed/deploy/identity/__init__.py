"""Who is who in a deployment: a private authority, certificates that expire, join tokens and a deny list.

names            what a node is called, and how a certificate names it
certificates     keys, signing requests and certificates, and why one is refused
authority        the private authority that signs
private_files    files that survive a crash and that only their owner may read
files            the folder in which a node keeps its key and its certificate
transactions     small databases that several processes use
tokens           single-use permissions to join
issued           which certificates were issued, and to which keys
proofs           proof that a node has the key of an expired certificate
deny             nodes that are locked out
identity_store   all that a coordinator keeps: authority, tokens, deny list and its own identity
join             how a new node gets its certificate
renewal          how a node renews it, also after it has expired
join_server      the coordinator's port for nodes without a valid certificate

A private key never leaves the machine on which it was made.
"""
