"""Service levels: working time that a row may take, with warnings and a breach.

from delaytasks import sla
from delaytasks.service_levels import ServiceLevel, SlaEvent, SlaStatus
"""

from .service_level import ServiceLevel, SlaEvent, SlaStatus

__all__ = ["ServiceLevel", "SlaEvent", "SlaStatus"]
