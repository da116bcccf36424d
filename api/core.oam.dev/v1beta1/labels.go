package v1beta1

// Annotations and labels that users set on an Application.
const (
	// PublishVersionAnnotation pins what runs: changes of the spec wait until its value changes.
	PublishVersionAnnotation = "app.oam.dev/publishVersion"
	// RestartWorkflowAnnotation asks for another run of the workflow: "true", a time (RFC 3339), or a duration, which
	// repeats.
	RestartWorkflowAnnotation = "app.oam.dev/restart-workflow"
	// WorkflowCommandAnnotation says what is to be done with the workflow, once for each value: suspend, resume,
	// terminate or restart, or resume/STEP, with @ and a mark that tells one command from the next.
	WorkflowCommandAnnotation = "lockstep.dev/workflow-command"
	// AutoUpdateAnnotation "true" takes up changes of definitions without a change of the application.
	AutoUpdateAnnotation = "app.oam.dev/autoUpdate"
	// PauseLabel "true" leaves the application, and what it manages, as they are.
	PauseLabel = "controller.core.oam.dev/pause"
	// AddonLabel names the addon that an application is of. Such applications are applied once: see the policy apply-once.
	AddonLabel = "addons.oam.dev/name"
	// UsernameAnnotation, GroupAnnotation and ServiceAccountAnnotation are the identity that an application acts with.
	UsernameAnnotation       = "app.oam.dev/username"
	GroupAnnotation          = "app.oam.dev/group"
	ServiceAccountAnnotation = "app.oam.dev/service-account-name"
	// AuthorGroupsAnnotation is a JSON list of the groups of the user in UsernameAnnotation. GroupAnnotation, the same joined by
	// commas, is for others to read: a group's name may have a comma in it.
	AuthorGroupsAnnotation = "lockstep.dev/author-groups"
	// DisableHealthCheckAnnotation on a workload makes it healthy whatever its status says.
	DisableHealthCheckAnnotation = "app.oam.dev/disable-health-check"
)

// Finalizers of an Application.
const (
	// ResourceTrackerFinalizer holds an application until what it manages is gone.
	ResourceTrackerFinalizer = "app.oam.dev/resource-tracker-finalizer"
	// OrphanFinalizer, set by users, lets the resources stay when the application goes.
	OrphanFinalizer = "app.oam.dev/orphan-resource"
)

// Labels and annotations on managed objects. Ownership is by label, for owners may live in another namespace or cluster.
const (
	AppNameLabel           = "app.oam.dev/name"
	AppNamespaceLabel      = "app.oam.dev/namespace"
	AppComponentLabel      = "app.oam.dev/component"
	AppRevisionLabel       = "app.oam.dev/appRevision"
	AppRevisionHashLabel   = "app.oam.dev/app-revision-hash"
	ComponentRevisionLabel = "app.oam.dev/revision"
	AppClusterLabel        = "app.oam.dev/cluster"
	AppUIDLabel            = "app.oam.dev/uid"
	ReplicaKeyLabel        = "app.oam.dev/replicaKey"
	ResourceTypeLabel      = "app.oam.dev/resourceType"
	WorkloadTypeLabel      = "workload.oam.dev/type"
	TraitTypeLabel         = "trait.oam.dev/type"
	TraitResourceLabel     = "trait.oam.dev/resource"
	RenderHashLabel        = "oam.dev/render-hash"
	// LastAppliedAnnotation is the base of three-way merges: the object as it was last applied.
	LastAppliedAnnotation = "app.oam.dev/last-applied-configuration"
	LastAppliedTime       = "app.oam.dev/last-applied-time"
	// SharedByAnnotation lists the applications, as namespace/name, that share an object; the first owns it.
	SharedByAnnotation = "app.oam.dev/shared-by"
)

// The values of ResourceTypeLabel.
const (
	ResourceTypeWorkload = "WORKLOAD"
	ResourceTypeTrait    = "TRAIT"
)

// SystemNamespace is where the definitions live that every namespace sees.
const SystemNamespace = "vela-system"

// LocalCluster is the name of the cluster that the manager itself runs against.
const LocalCluster = "local"
