"""Build the papers' networks, and train them."""

from gradleak.models.large import efficientnet_lite0, plain_lite0
from gradleak.models.ready import pretrained
from gradleak.models.registry import INITS, build, names

__all__ = ["INITS", "build", "efficientnet_lite0", "names", "plain_lite0", "pretrained"]
