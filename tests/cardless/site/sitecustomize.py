"""Python imports this at its start where the folder is on its path: a process of `roundhouse` then
has cards as the tests here do.
"""

from tests.cardless import finding

finding.install(cards=2)
