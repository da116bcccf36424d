package scheduler

import (
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/podset/plan"
)

// individuals is the owner of a gang whose pods have claims of their own. Such pods are not equal:
// each has its own volumes or devices, so each is a demand of its own in placement. The gang's owner
// is not concerned: it submits demands of equal pods, and gets assignments for them.
//
//	Submit(gang: 1 demand of 3 units) ──apart──▶ 3 demands of 1 unit ──Commit──▶ owner: 1 demand of 3 units
type individuals struct {
	gang *Gang
	unit [][2]int // per demand in placement, the demand and the unit of the gang
}

// apart returns the gang with one demand for each pod that has claims of its own, or g itself if
// there are none.
//
// The minimum of a demand becomes that of its first units, unless the gang's minimum implies it.
func apart(g *Gang) *Gang {
	own, units := false, 0
	for i := range g.Demands {
		own = own || plan.OwnClaims(g.Demands[i].Template)
		units += len(g.Demands[i].Units)
	}
	if !own {
		return g
	}
	out := *g
	owner := &individuals{gang: g}
	out.Owner, out.Demands, out.Parts = owner, nil, nil
	implied := g.MinMember >= units
	if len(g.Demands) == 1 {
		out.MinMember, implied = max(g.MinMember, g.Demands[0].Min), true
	}
	at := make([][]int, len(g.Demands)) // per demand of the gang, its demands in placement
	for i := range g.Demands {
		d := &g.Demands[i]
		if !plan.OwnClaims(d.Template) {
			at[i] = append(at[i], len(out.Demands))
			owner.unit = append(owner.unit, [2]int{i, -1})
			out.Demands = append(out.Demands, *d)
			continue
		}
		for k, name := range d.Units {
			one := Demand{Units: []types.NamespacedName{name}}
			if k < d.Min && !implied {
				one.Min = 1
			}
			if d.Existing != nil {
				one.Existing = d.Existing[k : k+1]
			}
			t := *d.Template
			t.Namespace, t.Name, t.UID = name.Namespace, name.Name, ""
			one.Template = &t
			at[i] = append(at[i], len(out.Demands))
			owner.unit = append(owner.unit, [2]int{i, k})
			out.Demands = append(out.Demands, one)
		}
	}
	for _, part := range g.Parts {
		demands := part.Demands
		part.Demands = nil
		for _, d := range demands {
			part.Demands = append(part.Demands, at[d]...)
		}
		out.Parts = append(out.Parts, part)
	}
	return &out
}

// Commit implements Owner.
func (o *individuals) Commit(_ *Gang, placed []Assignment) {
	for i := range placed {
		a := &placed[i]
		at := o.unit[a.Demand]
		if a.Demand = at[0]; at[1] >= 0 {
			a.Unit = at[1]
		}
	}
	o.gang.Owner.Commit(o.gang, placed)
}

// Waiting implements Owner.
func (o *individuals) Waiting(_ *Gang, why Reason) {
	if why.Ahead != nil {
		ahead := make([][]int, len(o.gang.Demands))
		for d, units := range why.Ahead {
			at := o.unit[d]
			if at[1] >= 0 && len(units) > 0 {
				units = at[1:]
			}
			ahead[at[0]] = append(ahead[at[0]], units...)
		}
		why.Ahead = ahead
	}
	o.gang.Owner.Waiting(o.gang, why)
}
