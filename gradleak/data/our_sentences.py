"""Sentences written for this project, for studies of words on machines without other texts."""

from __future__ import annotations

SENTENCES = """\
yes
come in
good night
not tonight thanks
see you on friday
the kettle is boiling
where did you park
our train leaves at seven
nobody answered the old telephone
please water the garden tomorrow
i forgot my umbrella again
she paints boats and lighthouses
the bakery opens before sunrise
bring a torch and spare batteries
he whistles while he works
we counted forty geese overhead
the river froze in january
your parcel is with the neighbour
is there any soup left
the clock in the hall runs slow
they moved to a smaller village
my brother repairs violins for a living
the cat sleeps on warm laundry
could you lower the music a little
the lecture was short but excellent
snow covered the whole valley by morning
the museum keeps a meteorite behind glass
i will call the plumber after lunch
her grandmother grew up beside a quarry
the children built a raft from barrels
take the second street on the left
there is honey in the blue jar
we missed the last ferry to the island
the judge asked for silence twice
someone left a bicycle against our fence
the bridge is closed until further notice
he reads the newspaper from back to front
that recipe needs more lemon and less sugar
the doctor wrote a letter to the school
ask the librarian for the green atlas
a fox crossed the road in front of us
the orchestra tuned for nearly ten minutes
my password is longer than this sentence
their dog is afraid of thunder
the meeting has moved to wednesday afternoon
i can't find the key to the cellar
the soldier carried his friend across the field
every window in the tower was broken
the farmer sold three horses at the market
we planted an oak where the barn stood
the pilot spoke calmly over the radio
a thin moon hung above the harbour
the tailor measured him from shoulder to wrist
don't touch the wire before i cut the power
the candle burned down during the story
her handwriting is small and very neat
the ship carried timber and salted fish
it rained so hard that the cellar flooded
the teacher drew a circle on the board
you should try the pear cake with cream
the mountain path is steep and full of stones
my sister teaches chemistry in another city
the thief escaped through the kitchen window
we sang until our voices were gone
the accountant found a mistake on page nine
his answer surprised everyone at the table
the sculptor prefers marble from the north
a stranger returned my wallet without a word
the well behind the church is dry
i dreamed of a house with a hundred doors
the bus was full so we walked
her new glasses make her look older
the shepherd knew each sheep by name
two sailors argued about the weather
the nurse closed the curtains and turned off the light
the engine coughed and then fell silent
he keeps his savings in an old boot
the queen's portrait hangs over the stairs
we need bread butter and a dozen eggs
the crowd cheered when the runner stumbled home
the actor forgot his lines in the third act
a spider had made its web across the doorway
the mayor promised a new playground by spring
she solved the puzzle faster than her uncle
the desert is colder at night than you expect
the carpenter sharpened every chisel before noon
i owe you an apology and a dinner
the letter arrived eleven years too late
the professor lost her notes on the tram
there are wolves in the forest again
his grandfather dug coal for thirty years
the concert was cancelled because of the storm
mix the flour with cold water and salt
the witness could not describe the driver
our roof leaks whenever the wind turns west
the gardener burned the leaves behind the shed
they crossed the border with false papers
the baby laughed at the falling apples
the physicist explained it with two mirrors and a lamp
please sign here and keep the yellow copy
the waiter brought olives that nobody had ordered
the volcano has been quiet since my childhood
a good carpet hides many sins
he traded his coat for a loaf of rye
the elephant remembered the smell of the river
the printer is out of ink once more
we buried the treasure map under the third fence post
the watchman makes his round at midnight
her speech ended with a joke about penguins
the apples from this tree are sour but useful
the lawyer charges by the quarter hour
put the ladder back where it belongs
the fishermen mend their nets on sundays
the satellite passed over us just after dusk
i learned to swim in a cold green lake
the blacksmith's daughter became an engineer
the town has one cinema and seven bakeries
the parrot repeats whatever the radio says
they argued about politics until the coffee was cold
the glacier loses a metre each summer
the violin was wrapped in a woollen scarf
the detective noticed mud on the polished floor
you can see the cathedral from our balcony
the frost ruined most of the grapes
the drummer arrived late and without his sticks
the poet lived above a noisy butcher
the emperor feared nothing except cats
the machine sorts letters by size and colour
her birthday falls on the longest day of the year
the juggler dropped one ball and bowed anyway
the tide brought glass and driftwood to the beach
nobody knows who built the stone circle
the student copied the proof without understanding it
the cook seasons everything with thyme
the miller's wheel has not turned for decades
send the invoice to my office in the capital
the acrobat trained her little brother secretly
the astronomer named a comet after his wife
the barber talks more than he cuts
i prefer trains because i can read on them
the castle garden is open to visitors in june
the patient slept well and asked for breakfast
the bees returned to the hive before the rain
an honest map also shows what is missing
the painter mixed a grey that looked like fog
the guard let us in through the side gate
the old dictionary smells of dust and tobacco
the chess players shook hands and began
our cousins visit us every second autumn
the shop sells buttons ribbons and thread
the explorer crossed the ice with nine dogs
the balloon drifted slowly toward the border
the secretary typed the contract a third time
his kindness was worth more than his advice
the goat ate the pages about algebra
the harvest was poor and the winter long
the photograph shows my mother at sixteen
the judge's hammer fell and the room emptied
a key without a lock is only a weight
""".splitlines()
