from yurttunnel.hub.filters.discardcloudservice import maker as discardcloudservice
from yurttunnel.hub.filters.forwardkubesvctraffic import maker as forwardkubesvctraffic
from yurttunnel.hub.filters.inclusterconfig import maker as inclusterconfig
from yurttunnel.hub.filters.masterservice import maker as masterservice
from yurttunnel.hub.filters.nodeportisolation import maker as nodeportisolation
from yurttunnel.hub.filters.serviceenvupdater import maker as serviceenvupdater
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
