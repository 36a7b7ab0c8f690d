"""Service levels: limit the working time of a model's rows, with warnings before the limit and a breach at it.

from delaytasks import sla
from delaytasks.service_levels import ServiceLevel, SlaEvent, SlaStatus
"""

from .service_level import ServiceLevel, SlaEvent, SlaStatus

__all__ = ["ServiceLevel", "SlaEvent", "SlaStatus"]
