"""The wire: connections between the nodes of one cluster (`links`), and the one door for outgoing HTTP."""
