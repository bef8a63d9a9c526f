"""Images: the software environments that engines run in, built from recipes and addressed by content.

`recipes` chooses one, `builder` builds and inspects it, `store` finds what was built. Locally an image is a virtual
environment.
"""
