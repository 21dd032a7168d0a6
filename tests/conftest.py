"""What all tests share: generated cases are the same in every run.

A change is judged by cases that do not change with it. To look for new ones, run
``pytest --hypothesis-profile=explore``.
"""

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile("same")
