"""A separable convolutional net that classifies looms by their sound is stopped by the queue of a cluster and resumed from its file. FAULT at step 120: the optimizer's state, the step
and the schedule are loaded, the weights are not (load_state_dict is called on a net that is thrown away); the net begins anew with the momenta of the old.
Without Rangewatch: loss 1.81 to 0.13 at step 119, 1.79 at step 120 (ln 6), 1.84 at step 140, 1.62 at the end.
Cause: weight (not restored). Step: 120. Right: checkpoint / weights / restore / load. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [118, 126], "place": None, "rank": 0,
          "right": "(?i)checkpoint|weight|restor|load|parameter", "wrong": ["GradScaler", "attention mask"]}
import io
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2121)
torch.set_num_threads(1)
hum = torch.randn(6, 4, 9)


def build():
    return nn.Sequential(nn.Conv1d(4, 32, 1), nn.Conv1d(32, 32, 9, groups=32), nn.GELU(), nn.Conv1d(32, 64, 1), nn.Conv1d(64, 64, 9, groups=64),
                         nn.GELU(), nn.AdaptiveMaxPool1d(2), nn.Flatten(), nn.Linear(128, 6))


def looms(n):
    y = torch.randint(0, 6, (n,))
    x = torch.randn(n, 4, 40)
    for i, at in enumerate(torch.randint(0, 31, (n,)).tolist()):
        x[i, :, at:at + 9] += 1.5 * hum[y[i]]
    return x, y


net = build()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=240)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    if step == 120:
        file = io.BytesIO()
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "plan": plan.state_dict()}, file)
        file.seek(0)
        kept = torch.load(file)
        for module in net:  # the new process begins with fresh weights in the same places
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        build().load_state_dict(kept["net"])
        optimizer.load_state_dict(kept["optimizer"])
        plan.load_state_dict(kept["plan"])
    x, y = looms(32)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    plan.step()
    if step % 20 == 0 or 118 < step < 123 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
