package v1beta1

// Annotations and labels that users set on an Application.
const (
	// PublishVersionAnnotation pins the deployed state: changes of the spec have no effect until
	// its value changes.
	PublishVersionAnnotation = "app.oam.dev/publishVersion"
	// RestartWorkflowAnnotation requests another run of the workflow: "true" for one run, a time
	// (RFC 3339) for one run then, or a duration for repeated runs.
	RestartWorkflowAnnotation = "app.oam.dev/restart-workflow"
	// WorkflowCommandAnnotation is a command to the workflow, carried out once for each value:
	// suspend, resume, terminate, restart, suspend/STEP, resume/STEP or restart/STEP, followed by @
	// and a text that distinguishes the command from the one before.
	WorkflowCommandAnnotation = "lockstep.dev/workflow-command"
	// AutoUpdateAnnotation with the value "true" deploys changes of definitions without a change of
	// the application.
	AutoUpdateAnnotation = "app.oam.dev/autoUpdate"
	// PauseLabel with the value "true" leaves the application and its objects unchanged.
	PauseLabel = "controller.core.oam.dev/pause"
	// AddonLabel names the addon to which an application belongs. Such applications are applied
	// once: see the policy apply-once.
	AddonLabel = "addons.oam.dev/name"
	// AddonVersionLabel and AddonRegistryLabel say which version of the addon it is and where it is
	// from.
	AddonVersionLabel  = "addons.oam.dev/version"
	AddonRegistryLabel = "addons.oam.dev/registry"
	// UsernameAnnotation, GroupAnnotation and ServiceAccountAnnotation are the identity with which
	// an application acts.
	UsernameAnnotation       = "app.oam.dev/username"
	GroupAnnotation          = "app.oam.dev/group"
	ServiceAccountAnnotation = "app.oam.dev/service-account-name"
	// AuthorGroupsAnnotation is a JSON list of the groups of the user in UsernameAnnotation. A
	// group's name may contain a comma, so GroupAnnotation, which has the same groups joined by
	// commas, is only for other programs.
	AuthorGroupsAnnotation = "lockstep.dev/author-groups"
	// ControllerVersionAnnotation with the value ControllerDisabled leaves the application and its
	// objects unchanged. Clients set it while they write an application and its status together.
	ControllerVersionAnnotation = "app.oam.dev/controller-version-require"
	ControllerDisabled          = "Disabled"
	// DefinitionRevisionAnnotation on a definition names its revision, as the version in its spec
	// does: NAME-vVALUE.
	DefinitionRevisionAnnotation = "definitionrevision.oam.dev/name"
	// RecordAnnotation on a ResourceTracker says that the tracker has its application's record, and the
	// how manieth it is: of several, the one with the largest number counts.
	RecordAnnotation = "lockstep.dev/record"
	// SkipGlobalAnnotation with the value "true" on an application keeps global policies from it.
	SkipGlobalAnnotation = "policy.oam.dev/skip-global"
	// DisableHealthCheckAnnotation on a workload makes it healthy whatever its status is.
	DisableHealthCheckAnnotation = "app.oam.dev/disable-health-check"
)

// Finalizers of an Application.
const (
	// ResourceTrackerFinalizer keeps an application until the objects that it manages are deleted.
	ResourceTrackerFinalizer = "app.oam.dev/resource-tracker-finalizer"
	// OrphanFinalizer, which users set, keeps the objects when the application is deleted.
	OrphanFinalizer = "app.oam.dev/orphan-resource"
)

// TrackerFinalizer is the finalizer of a ResourceTracker whose objects are deleted with it.
const TrackerFinalizer = "resourcetracker.core.oam.dev/finalizer"

// Labels and annotations of configs, which are Secrets, and of templates of configs, which are
// ConfigMaps.
const (
	// ConfigTemplatePrefix begins the name of a ConfigMap that has a config template; the name of the
	// template follows.
	ConfigTemplatePrefix = "config-template-"
	// ConfigCatalogLabel has the value ConfigCatalog.
	ConfigCatalogLabel = "config.oam.dev/catalog"
	ConfigCatalog      = "velacore-config"
	// ConfigTypeLabel names the template of a config.
	ConfigTypeLabel = "config.oam.dev/type"
	// ConfigScopeLabel is system or project.
	ConfigScopeLabel = "config.oam.dev/scope"
	// ConfigSensitiveAnnotation with the value "true" keeps steps from reading a config.
	ConfigSensitiveAnnotation = "config.oam.dev/sensitive"
	// ConfigTemplateNamespaceAnnotation is the namespace of the template of a config.
	ConfigTemplateNamespaceAnnotation = "config.oam.dev/template-namespace"
	ConfigAliasAnnotation             = "config.oam.dev/alias"
	ConfigDescriptionAnnotation       = "config.oam.dev/description"
)

// Labels and annotations on managed objects. Labels name the owner, because the owner may be in
// another namespace or cluster.
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
	// SharedByAnnotation lists the applications, as namespace/name, that share an object; the first
	// one owns it.
	SharedByAnnotation = "app.oam.dev/shared-by"
	// AggregateLabel, with the value true, is on the ClusterRoles that let the manager read and delete
	// further kinds of objects of applications.
	AggregateLabel = "lockstep.dev/aggregate-to-applications"
)

// The values of ResourceTypeLabel.
const (
	ResourceTypeWorkload = "WORKLOAD"
	ResourceTypeTrait    = "TRAIT"
)

// SystemNamespace is the namespace of the definitions that every namespace may use.
const SystemNamespace = "vela-system"

// LocalCluster is the name of the cluster that the manager itself manages.
const LocalCluster = "local"
