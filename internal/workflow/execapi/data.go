package execapi

// DataPlanEnv is the environment variable that holds a DataPlan.
const DataPlanEnv = "LOCKSTEP_DATA"

// DataPlan is a list of artifacts and what becomes of it.
type DataPlan struct {
	From        Location `json:"from"`
	Expressions []string `json:"expressions,omitempty"` // each sees the value before it as data
	// Result is true if some text refers to the result. A short result is reported in any case.
	Result     bool  `json:"result,omitempty"`
	MaxMessage int   `json:"maxMessage,omitempty"`
	Task       *Task `json:"task,omitempty"`
}
