"""Properties are about answers, not about time: an example that is slow on a busy machine is no
failure.
"""

from hypothesis import settings

settings.register_profile("attar", deadline=None)
settings.load_profile("attar")
