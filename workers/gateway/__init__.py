"""The frontend: one URL for every deployment, relayed byte for byte to the ready backends.

The data path is a pair of :class:`asyncio.Protocol` classes on uvloop, with httptools (llhttp) reading both directions:

``reader``    bytes of a client -> requests (limits, smuggling checks)
``client``    one client connection: order of answers, keep-alive, back-pressure, who is let in
``exchange``  one request from the routing decision to its last byte
``upstream``  connections to backends, and the pools of idle ones
``routing``   pure: the routing table, and which backend a request goes to
``keys``      API keys (hashes only)
``pages``     what the gateway answers itself: models, health, metrics
``watch``     follows the registry: routes and keys in, heartbeats with the requests in flight out
``core``      what all connections of a process share
``server``    listen, serve, drain
"""
