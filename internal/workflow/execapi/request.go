package execapi

// RequestPlanEnv is the environment variable that holds a RequestPlan.
const RequestPlanEnv = "LOCKSTEP_REQUEST"

// RequestPlan is an HTTP request and the condition for its success.
type RequestPlan struct {
	Method  string   `json:"method,omitempty"` // "" means GET
	URL     string   `json:"url"`
	Headers []Header `json:"headers,omitempty"`
	Body    []byte   `json:"body,omitempty"`
	// TimeoutSeconds bounds the whole exchange; 0 means 30.
	TimeoutSeconds int64 `json:"timeoutSeconds,omitempty"`
	NoTLS          bool  `json:"noTLS,omitempty"` // do not verify certificates
	// Success is an expression over request and response; "" means any 2xx status.
	Success string `json:"success,omitempty"`
	// Result is true if some text refers to the response body. A short body is reported in any
	// case.
	Result     bool  `json:"result,omitempty"`
	MaxMessage int   `json:"maxMessage,omitempty"`
	Task       *Task `json:"task,omitempty"`
}
