"""Search for wrong certificates: attack random clients that meet all assumptions or violate one of them."""

from gradleak.hunting.broken import BROKEN, Broken
from gradleak.hunting.families import FAMILIES, Family
from gradleak.hunting.outcomes import OUTCOMES, Answer, Outcome
from gradleak.hunting.running import Tally, hunt, table

__all__ = ["BROKEN", "FAMILIES", "OUTCOMES", "Answer", "Broken", "Family", "Outcome", "Tally", "hunt", "table"]
