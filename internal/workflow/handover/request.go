package handover

// RequestPlanEnv is the environment variable that holds a RequestPlan.
const RequestPlanEnv = "LOCKSTEP_REQUEST"

// RequestPlan is an HTTP request, and when its answer is a success.
type RequestPlan struct {
	Method  string   `json:"method,omitempty"` // "": GET
	URL     string   `json:"url"`
	Headers []Header `json:"headers,omitempty"`
	Body    []byte   `json:"body,omitempty"`
	// TimeoutSeconds bounds the whole of it; 0: 30.
	TimeoutSeconds int64 `json:"timeoutSeconds,omitempty"`
	NoTLS          bool  `json:"noTLS,omitempty"` // certificates are not verified
	// Success is an expression over request and response; "": a status of 2xx.
	Success string `json:"success,omitempty"`
	// Result says that somebody reads the answer's body. It is reported in any case if it is short.
	Result     bool  `json:"result,omitempty"`
	MaxMessage int   `json:"maxMessage,omitempty"`
	Task       *Task `json:"task,omitempty"`
}

// Encode returns the plan as the value of an environment variable.
func (p *RequestPlan) Encode() (string, error) { return encode(p) }

// DecodeRequestPlan reads the value of RequestPlanEnv.
func DecodeRequestPlan(text string) (*RequestPlan, error) {
	return decode[RequestPlan](RequestPlanEnv, text)
}
