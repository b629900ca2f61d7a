"""The node: the daemon, its HTTP listeners, the command line, local clusters, the demo.

Imports everything else; nothing imports it. `services` builds the parts and answers for the cluster, `client_api`
and `admin_api` are the HTTP routes. Start at `daemon`, which reads in the order in which a node starts.
"""
