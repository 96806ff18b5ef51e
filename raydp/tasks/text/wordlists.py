"""Word lists of the text tasks: names for controls, and words that belong to a format or are filler."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Made-up and rare names of many lengths, so that a control is about as long as its secret.
CONTROL_NAMES = _words(
    "Ife Noa Pia Uwe Zev Anke Bodo Dirk Elke Gero Hedy Imke Kaia Mael Aldis Brigg Corra Dagny Farid Greer Hanno Jarek "
    "Ansgar Bertil Corwin Dorrit Eskild Gudrun Ingvar Joslyn Albrook Brannon Castell Dunmore Fenwick Garside Halvard "
    "Isidora Ashworth Birchall Coverley Danforth Ellinger Fairholm Hartwell Lindqvist Attenbury Chatterly Farnworth "
    "Grosvenor Kettleman Abernathie Birkenhall Carrowmore Dalrympole Nightengale Butterworth Etherington Featherston "
    "Hathersmith Willoughbie"
)

# Words of letters, forms of address and headers: a control shares them with its secret, as they belong to the format.
FORMAT_WORDS = frozenset(
    _words(
        "am and attached bcc box by cc cell com company corp date dear dr email fax floor from forwarded fw fwd house "
        "http inc llc ltd mail message mobile mr mrs ms net office on org original phone pm po re regards room sent "
        "sincerely st street subject suite tel telephone thank thanks the to www january february march april may june "
        "july august september october november december monday tuesday wednesday thursday friday saturday sunday"
    )
)

# Words before "genre" that do not name a genre: "in the genre", "her primary genre", "has shaped the genre".
GENRE_FILLER = frozenset(
    _words(
        "a about acclaimed across an and another any as at best beyond by certain chosen compelling different "
        "distinct each enriched every famous favored favorite favourite for from has have her his impacted in "
        "influence influenced into is its known leading like literary literature main major many more most multiple "
        "my new of on one only or other our outside own particular popular preferred primary redefined renowned "
        "respective same several shape shaped single some specific specified such that the their these this those to "
        "towards traditional transformed typical unique usual various was what whatever which whose with within "
        "writing your"
    )
)
