"""Route between the nodes of a cluster: who is there, who answers, and how a request gets to the node it is for."""
