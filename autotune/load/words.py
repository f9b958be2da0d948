"""Words that prompts are made of: short and common, so that most are one token in every English BPE vocabulary."""

from __future__ import annotations

_TEXT = """
able about above across act add after again age ago air all also always among and animal another answer any area
arm around art ask away back bad ball bank base be bear because bed been before began begin behind being best better
between big bird black blue board boat body book both box boy bring brother brought build built burn bus business
but buy by call came can car card care carry case cat cause cell center chair change check child city class clean
clear close cloud cold color come common complete contain cook cool copy corn corner cost could count country course
cover cross cry current cut dark data day deal decide deep design did die different direct distance do does dog done
door double down draw dream dress drink drive drop dry during each ear early earth east easy eat edge egg eight end
energy enough equal even evening ever every exact example eye face fact fall family far farm fast father fear feed
feel feet few field fight figure fill final find fine finger finish fire first fish fit five flat floor flow flower
fly follow food foot for force form found four free fresh friend from front fruit full fun game garden gave general
get girl give glass go gold gone good got govern grand grass great green ground group grow guess had hair half hand
happen happy hard has have he head hear heart heat heavy help her here high hill him his history hit hold hole home
hope horse hot hour house how human hundred hunt hurry ice idea if in inch increase interest iron island it job join
joy jump just keep kept key kind king knew know land language large last late laugh law lay lead learn leave left
leg less let letter level lie life light like line list listen little live local long look lost lot love low machine
made main major make man many map mark market master match matter may mean measure meat meet member men metal method
middle might mile milk million mind mine minute miss modern money month moon more morning most mother mountain mouth
move much music must name nation nature near need never new next night nine no noise north nose note nothing notice
noun now number object ocean of off offer office often oil old on once one only open order other our out over own
page paint paper part party pass past path pattern pay people perhaps period person picture piece place plain plan
plane planet plant play point poor port position possible pound power present press pretty print problem produce
product proper provide pull push put question quick quiet race radio rain raise ran range rather reach read ready
real reason record red region remember rest result rich ride right ring rise river road rock role room root rose
round rule run safe said sail salt same sand sat save saw say school science sea season seat second see seem self
sell send sense sent serve set seven several shape share sharp she ship shoe shop short should show side sight sign
silver simple since sing sister sit six size skin sky sleep slow small snow so soft soil some son song soon sound
south space speak special speed spell spot spread spring square stand star start state station stay step stick still
stone stood stop store story street strong student study such sugar summer sun sure surface system table take talk
tall teach team tell ten term test than that the their them then there these they thing think third this those
though thought three through time tiny to together told too took tool top total touch toward town track trade train
travel tree trip true try turn two type under unit until up us use valley value very view village visit voice wait
walk wall want war warm was wash watch water wave way we wear weather week weight well went were west what wheel
when where which while white who whole whose why wide wife wild will wind window wing winter wire wish with woman
wonder wood word work world would write wrong year yellow yes yet you young your
"""

COMMON_WORDS: tuple[str, ...] = tuple(_TEXT.split())
