"""A patch transformer for sounds of engines, stopped and resumed. FAULT at step 120: the checkpoint was written by a wrapped model, its names begin with
"module.", and load_state_dict(strict=False) loads not one of them and says nothing. The fresh model goes on from chance with the old Adam state.
Without Rangewatch: loss 2.37 to 0.40 at step 119, 2.34 at step 120 (log of 10 is 2.30), 0.40 again at step 259; 29 of 29 keys are missing.
Report: pytorch/examples#1029 ("can silently load a corrupted model", a prefix of the names), pytorch/pytorch#141256 (a recurring
issue, silent).
Cause: weight. Step: 120. Right: checkpoint / weights / loaded / strict / restart. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [119, 122], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "checkpoint|weight|load|strict|overwrit|reset|restart"}
import io
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1004); torch.set_num_threads(1)
ENGINES = 10
hum = torch.randn(ENGINES, 12, 16)


class SoundTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(16, 32)
        self.place = nn.Parameter(0.02 * torch.randn(12, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, ENGINES)

    def forward(self, x):
        return self.head(self.body(self.patch(x) + self.place).mean(1))


model = SoundTransformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    if step == 120:  # the job was pre-empted; a new process builds the model anew and resumes
        file = io.BytesIO()
        torch.save({"model": {"module." + k: v for k, v in model.state_dict().items()}, "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        with torch.no_grad():
            for module in model.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()
                elif hasattr(module, "_reset_parameters"):
                    module._reset_parameters()
            model.place.normal_(std=0.02)
        saved = torch.load(file)
        print("keys that were not loaded", len(model.load_state_dict(saved["model"], strict=False).missing_keys))
        optimizer.load_state_dict(saved["optimizer"])
    engine = torch.randint(0, ENGINES, (32,))
    x = hum[engine] + 1.2 * torch.randn(32, 12, 16)
    loss = F.cross_entropy(model(x), engine)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (119, 121, 259):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
