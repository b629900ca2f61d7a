"""The command line, `isthmus NOUN VERB`: one module for each noun, imported when it is used.

Commands talk to a node over its admin listener (`admin_client`). Must not import `node.demo` at run time of other
nouns. Start at `main`, which lists the nouns.
"""
