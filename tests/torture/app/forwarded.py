"""Topics that are forwarded to the targets of the installation, if it has any."""

from delaytasks import forward

from ..constants import FORWARDED_TTR_SECONDS
from ..targets import senders
from ..targets.addresses import addresses
from .timeouts import KEEPS_TRYING

SLOTS = 2  # at once, so that a target that is slow leaves processes for the others

for topic, address in addresses().items():
    forward(topic, senders.make(topic, address), ttr=FORWARDED_TTR_SECONDS, concurrency=SLOTS, **KEEPS_TRYING)
