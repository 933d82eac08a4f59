"""Beyond one machine, on Ray: batches of runs as tasks, shards of one large run as actors.

This room alone imports Ray, and only when it is used. Ray runs whatever code its members send one another, so a cluster
is for machines of one owner on a private network; between organisations there is `hatdfed coordinator`.
"""
