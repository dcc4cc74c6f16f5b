from yurttunnel.hub.filters.discardcloudservice import maker as discardcloudservice
from yurttunnel.hub.filters.nodeportisolation import maker as nodeportisolation
from yurttunnel.hub.filters.redirect import (
    forwardkubesvctraffic,
    inclusterconfig,
    masterservice,
    serviceenvupdater,
)
from yurttunnel.hub.filters.servicetopology import maker as servicetopology

__all__ = [
    "discardcloudservice",
    "forwardkubesvctraffic",
    "inclusterconfig",
    "masterservice",
    "nodeportisolation",
    "serviceenvupdater",
    "servicetopology",
]
