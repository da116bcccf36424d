package reservation_test

import (
	"testing"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/reservation"
)

func TestReservedCPUs(t *testing.T) {
	named := func(list string) reservation.Reserve { return reservation.Reserve{Named: cpuset.MustParse(list)} }
	for name, c := range map[string]struct {
		reserve reservation.Reserve
		want    string
	}{
		"nothing":                {reservation.Reserve{}, ""},
		"by number":              {named("5-6"), "5-6"},
		"only what exists":       {named("250-300"), "250-255"},
		"a count is whole cores": {reservation.Reserve{Count: 4}, "0-1,128-129"},
		"an odd count":           {reservation.Reserve{Count: 3}, "0-1,128"},
		"a share, rounded up":    {reservation.Reserve{Percent: 1}, "0-1,128"},
		"the largest of them":    {reservation.Reserve{Count: 2, Percent: 2}, "0-2,128-130"},
		"more than are named":    {named("9").And(reservation.Reserve{Count: 3}), "0,9,128"},
		"enough are named":       {named("9-12").And(reservation.Reserve{Count: 3}), "9-12"},
		"both name some":         {named("9").And(named("11")), "9,11"},
		"more than there are":    {reservation.Reserve{Count: 1000}, "0-255"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.reserve.Of(machines.AMD256NPS4.MustTopology()).String(); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
